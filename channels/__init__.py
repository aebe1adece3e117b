"""Channel adapters for chat platforms, and the port they implement."""
