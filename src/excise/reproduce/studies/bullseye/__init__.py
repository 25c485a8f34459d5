"""Table 1: who finds the Markov blanket in the 3-D bullseye data, and how long does it take?"""
