"""Records a session of real processes and draws it: the README's animated picture."""
