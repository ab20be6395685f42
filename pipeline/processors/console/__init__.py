"""Documents for the console, the web page of the extender."""
