"""What do other tools answer?"""
