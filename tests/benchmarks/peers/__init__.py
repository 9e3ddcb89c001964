"""What each queue of the benchmark against peers does, one module a queue, behind one protocol."""
