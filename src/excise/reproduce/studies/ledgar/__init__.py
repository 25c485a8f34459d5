"""Table 2: how many provisions of a class can be removed from a transformer that was fine-tuned on LEDGAR?"""
