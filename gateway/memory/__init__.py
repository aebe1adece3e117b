"""Memory: notes about people, rooms, agents and accounts that outlive conversations."""
