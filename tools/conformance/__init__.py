"""PyTorch's own tests of `torch.distributed`, over this package's process group and over gloo."""
