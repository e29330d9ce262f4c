"""Triton kernels for CUDA, each of which replaces a few torch operations with fewer passes over memory.

The room that calls a kernel has a torch version of it, which runs on other devices and against which the kernel is
tested. Triton is imported only for CUDA tensors.
"""
