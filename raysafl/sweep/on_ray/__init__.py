"""Carries out packs on Ray, each as a trial of Ray Tune."""
