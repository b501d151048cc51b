"""The dashboard: pages about runs, made from what their coordinators leave in the run folders."""
