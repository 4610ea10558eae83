"""Estimate the steps of random programs: see ``benchmarks/cpu/programs.py``."""

from benchmarks.cpu.programs import main

if __name__ == "__main__":
    main()
