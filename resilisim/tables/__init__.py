"""Tables and the numbers in them: one `Table`, written for the terminal, as Markdown and as HTML."""
