"""What every process needs from its computer: clocks and threads, temporary files, ending with its parent."""
