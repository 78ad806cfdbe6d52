"""Places: geometry on the sphere and on the plane, and the cells under which indexes hold geometries. Pure functions.

A longitude and a latitude in degrees become a unit vector, so that neither the poles nor the antimeridian are special.
Nothing here is imported until a command names a geospatial operator or index.
"""
