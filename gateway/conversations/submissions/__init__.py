"""Messages for agents on their way into the queue: submissions, queue modes, and what clients see of them."""
