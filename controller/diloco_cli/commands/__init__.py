"""Commands that both programs have, and what commands of both share."""
