"""Record the memory of training steps on a GPU, or compare it with predictions: see ``benchmarks/cuda/truth.py``."""

from benchmarks.cuda.truth import main

if __name__ == "__main__":
    main()
