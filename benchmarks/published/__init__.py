"""Do predictions agree with published figures?"""
