"""What a process needs of the computer that it is on, whatever it does there."""
