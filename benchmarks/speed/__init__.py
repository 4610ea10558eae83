"""How much time and memory do summaries and estimates take?"""
