"""Capture a module by ``torch.export``, and give its graph to the lowering."""
