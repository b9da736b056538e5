"""Quantize modules of torch: what needs the module, or data to calibrate it.

``module`` replaces layers, ``layers`` has the modules that replace them, ``observers`` choose
ranges of activations, and ``correction`` chooses integers by calibration data. ``unpack`` takes
apart the layers of torch's eager quantization.
"""
