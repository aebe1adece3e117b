"""Files both ways: what agents and jobs leave for people, and what people attach."""
