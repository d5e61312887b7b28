"""Models that Heliograph captures, and the loaders that read them from their published files.

Reading order:

- ``llama``           the model itself, in plain PyTorch on the heliograph ops
- ``rope``            rotary position embedding: settings, frequencies
- ``weights``         tensors handed out by name, each exactly once
- ``serving``         the sizes that a capture fixes
- ``llama_spec``      what serving captures: decode, prefill, their inputs, the state
- ``llama_examples``  valid inputs of every bucket
- ``load``            a path -> model, spec and sources
- ``source_file``     a file that is only read, every read checked
- ``load_gguf``       from a GGUF file: ``gguf_file`` (container), ``gguf_metadata`` (typed values),
  ``gguf_tokenizer`` (a tokenizer.json from vocabulary and merges)
- ``load_hf``         from a Hugging Face folder: ``hf_config``, ``hf_text``, ``safetensors_file``
- ``load_cuda``       the same for CUDA devices: ``dequantise`` makes packed weights plain; imports triton
- ``model_text``      tokenizer and chat template, tried before they go into a core

Only ``capture`` commands import this package: it needs torch. It imports ``capture.spec``, ``runtime.text``, ``ops``
and ``errors``; never ``serve``, ``qualify`` or ``cli``.
"""
