"""Tests run in two processes on two cores, so each gets one thread of torch."""

import torch

torch.set_num_threads(1)
