"""Core names: ``{arch}-tp{ranks}-{YYYYMMDDhhmm}[-{count}]``, parsed from the right (an arch may hold dashes)."""
