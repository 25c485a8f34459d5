"""Remark 2: does ξ of every pixel and the output explain what a network looks at, and better than its gradient?"""
