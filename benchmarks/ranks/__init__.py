"""Is the memory of one rank of many what real processes allocate?"""
