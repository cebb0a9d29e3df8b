"""What a draft is worth before it is built or deployed, from the token probabilities of draft and target."""
