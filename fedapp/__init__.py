"""The application: what Flower loads, the command line, simulation, run folders and reports."""
