"""The benchmark's own parts: cells, operands, timing, the limit, checks and reports. Rivals are in ../rivals."""
