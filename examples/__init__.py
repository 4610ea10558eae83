"""Models shared by the tests, the notebooks and the README, each a short file of plain PyTorch."""
