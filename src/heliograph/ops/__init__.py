"""Ops: what a model is made of, for every device. One folder an op.

A folder says what the op means (shapes, types, tolerances), which kernels it has and how a call becomes launches; its
``reference.py`` is the op in plain PyTorch, registered in namespace ``heliograph``; its ``triton.py`` is the op on CUDA
devices. In reading order:

``launch``       views, parameter blocks, kernels, and the table of lowerings
``arguments``    one call's arguments by name, checked; what no kernel takes is refused
``layouts``      how weights are stored: plain types and GGUF blocks
``embedding``, ``linear``, ``rms_norm``, ``rope``, ``kv_store``, ``paged_attention``, ``silu_mul``, ``gather_rows``,
``add``, ``resolve_ids``, ``history_store``, ``clear_padding``, ``sample``   the ops of language models, as a step goes
``aten``         lowerings of the core-ATen ops, for any other model
``lowerings``    imports every folder: after it the table is full
``references``   imports every reference: after it ``torch.ops.heliograph`` is full
``triton_launch``, ``triton_math``   how a lowering's launches become those of Triton kernels; what the kernels share
``triton_ops``   imports every Triton kernel: after it ``torch.ops.heliograph`` runs them on CUDA tensors

Everything but ``reference.py``, ``references``, ``triton.py`` and ``triton_*`` is free of torch and numpy, since the
runtime needs names and parameter blocks. Imports ``errors`` only, never ``core``, ``device``, ``capture``, ``runtime``.

An op that computes row by row takes ``real``, i32[1]: how many leading rows of its bucket are no padding. The rows
behind them are not computed, and what the result holds there is undefined. Without ``real`` no row is padding.

All kernels are row-invariant: a row of a result has the same bits in any bucket, at any index, in any chunk, on any
number of workers. ``tests/ops`` compares them by bytes. The host's and CUDA's bits differ from each other.
"""
