"""Tables, figures, Markdown and HTML. Reports draw what the analysis found and compute nothing."""
