"""Text as it is written: events of a row, and the state at every moment. Imports the engine, never a generator."""
