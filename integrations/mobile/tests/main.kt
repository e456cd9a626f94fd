package candle.attention

/** Runs the checks of the Kotlin bindings on the Java virtual machine. */
fun main() {
    checkEmbeddings()
    checkSearch()
    checkErrors()
    println("the Kotlin bindings pass")
}
