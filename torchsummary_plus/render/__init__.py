"""Tables as text, Markdown, LaTeX, HTML, CSV, JSON, diagrams and plots. No torch."""
