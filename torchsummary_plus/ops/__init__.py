"""What an operator is: its multiply-adds, the shape of its result, and the scratch memory of its kernels."""
