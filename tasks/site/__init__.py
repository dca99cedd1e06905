"""What every site does in any task: introduce itself, and answer faults in safe words."""
