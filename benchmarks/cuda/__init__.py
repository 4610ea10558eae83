"""Are estimates for CUDA what torch allocates there?"""
