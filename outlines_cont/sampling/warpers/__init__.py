"""Logits warpers, one file each: steps between the penalties and the draw. A new one needs its own file and no other."""
