"""Theory: closed forms and bounds for the time and error of strategies and codes."""
