"""Are estimates for the CPU what torch allocates there?"""
