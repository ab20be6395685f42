"""Figures as SVG, and HTML pages with them, from arrays and text. Names in them are escaped."""
