"""Figure 6: removing most of a training set sample by sample, against retraining, with two weight decays."""
