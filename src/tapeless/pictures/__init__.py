"""Pictures of what was measured: SVG, and lines of text for a terminal."""
