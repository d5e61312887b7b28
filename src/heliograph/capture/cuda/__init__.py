"""Capture on a CUDA device, through PyTorch's stream capture.

Reading order:

- ``session``        CUPTI, context and addresses, before PyTorch initialises CUDA
- ``record``         every bucket run, then captured; the census; a Recording
- ``walk``           the model run on what we place: weights, state, inputs and outputs
- ``pools``          what PyTorch allocates by itself
- ``torch_capture``  one stream capture
- ``ops``            which op and line each node comes from
- ``graphs``         captured nodes become nodes of a core
- ``kernels``        images and functions, exactly those in use
- ``tensors``        PyTorch tensors over placed memory
"""
