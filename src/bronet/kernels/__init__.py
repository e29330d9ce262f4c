"""Triton kernels for CUDA: each computes what a few torch operations would, with fewer passes over memory.

Every kernel has a torch twin in the room that calls it, which runs on other devices and which the kernel is tested
against. Triton is imported only when a CUDA tensor arrives.
"""
