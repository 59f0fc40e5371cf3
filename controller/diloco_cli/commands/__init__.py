"""Commands that both programs have, and what those of one share with those of the other."""
