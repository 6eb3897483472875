"""Other engines behind the same clock; each module imports its library when it is opened."""
