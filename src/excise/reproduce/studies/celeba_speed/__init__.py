"""Figure "speed": how long do FOCI (by CODEC) and L-FOCI (by L-CODEC) take for the blanket of a CelebA attribute?"""
