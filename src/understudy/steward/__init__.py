"""What an operator who never sleeps would notice and decide: pure, from observations to actions, with reasons."""
