"""`python -m headrace.spark.java`: prints a JAVA_HOME for `spark-submit` and the other programs that come with Spark.

These programs always request a Java module that the Java from pip lacks (only MLlib would use it); see
`headrace.spark.session.jvm.home_for_spark`.
"""

from __future__ import annotations

from headrace.spark.session.jvm import find_java, home_for_spark

if __name__ == "__main__":
    print(home_for_spark(find_java()))
